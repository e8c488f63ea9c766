"""What acts for the core: sockets, descriptors, files, child processes, threads, the clock."""
