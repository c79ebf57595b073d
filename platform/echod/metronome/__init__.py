"""The metronome: parks a node's idle capacity on the bell, and is woken."""
