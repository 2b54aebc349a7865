"""PreServe's request load predictor: output lengths from prompts (section 4.2, figure 6).

    config.py         constants, with their sources
    augmentation.py   over-sampling of rare lengths with text perturbation
    synonyms.py       the table that perturbation draws from
    network.py        DistilBERT with learnable prompt tokens and a regression head
    predictor.py      the predictor

The text is silent on M, N, the loss, the head's width, optimiser, learning rate, batch size, epochs, on what becomes of
prompts longer than the encoder reads, and on where synonyms come from: `source: ours` throughout.
"""
