"""The rules, one file each, in folders by the layer of PyTorch that they protect."""
