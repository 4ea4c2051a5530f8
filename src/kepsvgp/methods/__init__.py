"""The methods that the paper compares with, one file each, all ending in a `Prediction`.

A fitted method has `predict(inputs, *, generator=None)` and `save(folder)`; its module has
`fit` and `load`. Methods that change what is trained are chosen by `RunConfig.method`.
"""
