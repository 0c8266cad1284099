"""How runs stand, what they print, and ending them, whoever launched them and with whatever launcher."""
