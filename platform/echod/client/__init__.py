"""echod from other programs: enqueue, wait for results, cancel, repeat; over HTTP or straight to the bus."""
