"""The methods that the paper compares, one file each, all ending in a `Prediction`.

A method is an object: its name and title, its settings, its network, how it is trained and how it
is asked. `kepsvgp.config.plugins.find_method` gives one by its name.
"""
