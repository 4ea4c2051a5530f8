"""Trained models at work: a folder opened for new inputs, and whole files of them predicted."""

from kepsvgp.serving.saved import SavedModel as SavedModel
from kepsvgp.serving.saved import open_folder as open_folder
from kepsvgp.serving.stream import predict_file as predict_file
