"""Language models: tokens, chat templates, sampling, architectures, and the model that generates."""
