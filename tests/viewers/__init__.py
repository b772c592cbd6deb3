"""The viewers that people open a trace with, driven without a screen."""
