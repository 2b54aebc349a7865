"""mu-Serve's predictor of output lengths (Qiu et al., USENIX ATC 2024): BERT classifies prompts into buckets of length.

    config.py      constants, with their sources
    buckets.py     buckets at percentiles of the training lengths, and their medians
    network.py     BERT with a multilayer perceptron
    predictor.py   the predictor

It stands here as PreServe's baseline (section 5.2.2: "dividing response lengths into multiple buckets. It fine-tunes
BERT and a multilayer perceptron to classify LLM requests into these predefined length categories. We adopt the original
implementation of mu-Serve and use the median value of each bucket"). mu-Serve's own subject, GPU frequencies, is not
part of it.

PreServe does not say which buckets. The constants are those of the authors' public release of the same predictor
(github.com/James-QiuHaoran/LLM-serving-with-proxy-models, with Qiu et al., AIOps 2024, arXiv 2404.08509): five buckets
that end at the 25th, 50th, 75th and 99th percentile; [CLS] through linear layers of width 128 with ReLU; log-likelihood
weighted by inverse class frequency; AdamW at 1e-5 falling linearly to 0; batches of 16; six epochs, BERT frozen after
the third; the last 512 tokens of a longer prompt. Departures: a cut prompt keeps its [CLS], which the release cuts off
with the rest; class weights come from the training part alone; lengths are not limited to 512 tokens, because Table 2
goes up to 4096. When BERT is frozen the release also sets a rate of 1e-4, which its schedule overwrites one step later:
what takes effect is done here.
"""
