"""Predicting the length of an answer from the text of its prompt: what the predictors of several papers have in common.

    encoder.py      a pretrained encoder and its tokenizer from a folder, or tiny random ones built on the spot
    tokens.py       texts as padded batches of token ids
    config.py       settings that every predictor has
    predictor.py    fitting, predicting, saving and loading; a paper's predictor says what is its own
    evaluation.py   split, figures of PreServe's Table 2, milliseconds a prediction
    registry.py     every predictor by name

The predictors are `baselines.preserve.length_predictor` (regression with a prompt-tuned DistilBERT) and
`baselines.mu_serve` (BERT into buckets of length).

The fourth row of PreServe's Table 2, PiA ("Perception in Advance", Zheng et al., NeurIPS 2023), is not among them: it
adds an instruction to the prompt by which the served LLM itself estimates the length before it answers. That needs the
LLM in the loop (Vicuna-13B, ChatGPT) and changes what it is asked, so there is nothing to train and nothing to run
here. Its errors, as Table 2 reports them, are those of `envs.workload.predictions` (`pia_vicuna_13b`, `pia_chatgpt`).

Everything here needs the package `transformers` (`pip install 'serving-gym[text]'`) and reads local folders only.
"""
