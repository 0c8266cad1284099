"""Programs for developers of this project; nothing here is part of the installed package."""
