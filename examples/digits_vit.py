"""Trains a small Vision Transformer of Hugging Face on the digits of scikit-learn.

It is the model that the README and the tutorials begin with: some seconds, nothing to download.
The first 1,000 digits train it; the others are left for you.
"""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import ViTConfig, ViTForImageClassification

STEPS = 300
folder = sys.argv[1] if len(sys.argv) > 1 else "digits-vit"
digits = load_digits(return_X_y=True)
order = np.random.RandomState(0).permutation(len(digits[1]))
images, labels = (torch.tensor(part)[order] for part in digits)
# in double precision, so that other processors and threads end in the same model
images = images[:1000].double().view(-1, 1, 8, 8) / 16

torch.manual_seed(0)
config = ViTConfig(
    image_size=8, patch_size=2, num_channels=1, hidden_size=64, num_hidden_layers=2,
    num_attention_heads=4, intermediate_size=128,
)  # fmt: skip
config.num_labels = 10
model = ViTForImageClassification(config).double().train()
optimizer = torch.optim.AdamW(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS)
for _ in range(STEPS):
    rows = torch.randint(1000, (64,))
    model(images[rows], labels=labels[rows]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
model.float().save_pretrained(folder)
print(f"a ViT for digits: {folder}")
