"""Engines of several ranks, each rank a process, as one MPI job per engine.

``wire`` frames messages, ``communicator`` is the control path between ranks (host contract §5),
``reducer`` the models' all-reduce, ``sharding`` and ``tpmodel`` what one rank computes. ``job``
starts and ends the processes: ``nursery`` forks jobs, ``launcher`` is a job's mpirun,
``rankserver`` runs in each rank, ``injection`` is what tests make go wrong there. ``engines`` is
the facade in the process that asks: ``TensorParallelEngine``, ``AttentionDpEngine``.
"""
