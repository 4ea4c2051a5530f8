"""The paper's Transformers, with softmax attention or any of ours in their last layers."""

from kepsvgp.models.blocks import Block as Block
from kepsvgp.models.blocks import Classifier as Classifier
from kepsvgp.models.build import ImageShape as ImageShape
from kepsvgp.models.build import InputShape as InputShape
from kepsvgp.models.build import TextShape as TextShape
from kepsvgp.models.build import build_model as build_model
from kepsvgp.models.text import TextTransformer as TextTransformer
from kepsvgp.models.vit import VisionTransformer as VisionTransformer
