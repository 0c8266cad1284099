"""The state of runs, what they print, and ending them, whoever launched them and with whatever launcher."""
