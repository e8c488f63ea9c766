"""Engines of several ranks, each rank a process, as one MPI job per engine.

``wire`` frames messages, ``communicator`` is the control path between ranks (host contract §5),
``reducer`` the models' all-reduce, ``sharding`` and ``tpmodel`` what one rank computes. ``job``
starts and ends the processes through ``launcher`` (the job's mpirun), ``rankserver`` is what runs
in each, ``injection`` what tests make go wrong there, and ``engines`` the facade in the process
that asks: ``TensorParallelEngine``, ``AttentionDpEngine``.
"""
