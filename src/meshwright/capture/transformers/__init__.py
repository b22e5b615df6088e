"""Models of Hugging Face's Transformers, from a configuration. Enters: a class and settings, as
text. Leaves: an `Example` with the inputs and labels that the class takes. Nothing is ever fetched
from a hub.
"""

from meshwright.capture.transformers.build import example_of_class

__all__ = ["example_of_class"]
