"""The code that the documentation's embedded pages explore."""
