"""timm beside a torch that its torchvision was not built for: two operators are declared here."""

import torch

# Kept for the life of the process: the declarations go with it.
LIBRARY = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
