"""How many instances, of which model, where and when."""
