"""What a job decides while it runs, as pure values and state machines: no Ray, no thread, no clock, no file."""
