"""Published models and tokenizers, by the names that launch files give them."""
