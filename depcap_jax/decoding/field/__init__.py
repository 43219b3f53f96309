"""The field's other decoders, each as published: selections and windows that any recipe may use."""
