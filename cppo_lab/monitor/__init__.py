"""Shows the state and output of runs and cancels them, whoever launched them and with whichever launcher."""
