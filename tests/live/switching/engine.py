"""Runs inside a Python with vLLM: drives a TP=2 engine in-process, plain or with the plugin, and writes what it did.

python engine.py make FOLDER                     a tiny Llama with weights (grouped-query attention, fused biases)
python engine.py plain MODEL SINK                tokens of an engine that knows nothing of the plugin
python engine.py plugin MODEL SINK WORDS         every scenario below, with the plugin's keyword arguments
"""

import json
import random
import sys
from pathlib import Path

BLOCK = 32  # tokens of a block in DP
KV_BLOCKS = 64
BLOCK_BYTES = 2 * 4 * BLOCK * 32 * 4 * 2  # key and value, heads, tokens, head_dim, bytes, layers
MAX_TOKENS = 40
LONG = KV_BLOCKS * BLOCK - 20  # more than a rank alone can hold, less than two together


def make(folder):
    """Weights by torch alone; large ones, so that two tokens seldom have nearly the same logit."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

    set_seed(0)
    words = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "vocab_size": 1000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    config = Qwen2Config(**words, **heads, **tokens, initializer_range=0.2, dtype="float32")
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    model.save_pretrained(folder)


def prompt(seed, length):
    draw = random.Random(seed)
    return [draw.randrange(3, 1000) for _ in range(length)]


def requests():
    """Greedy and seeded requests of several lengths, by id."""
    from vllm import SamplingParams

    common = {"ignore_eos": True, "detokenize": False}
    greedy = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, **common)
    made = {f"greedy-{k}": (prompt(k, 20 + 45 * k), greedy) for k in range(8)}
    for k in range(4):
        seeded = SamplingParams(max_tokens=MAX_TOKENS, temperature=1.0, seed=k, **common)
        made[f"seeded-{k}"] = (prompt(100 + k, 30 + 20 * k), seeded)
    longest = SamplingParams(max_tokens=8, temperature=0, **common)
    made["long"] = (prompt(7, LONG), longest)
    short = SamplingParams(max_tokens=8, temperature=0, **common)
    made |= {f"short-{k}": (prompt(200 + k, 25), short) for k in range(4)}
    penalised = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, presence_penalty=1.5, **common)
    made["penalised"] = (prompt(8, 60), penalised)
    return made


class Engine:
    """An in-process engine that is stepped by hand."""

    def __init__(self, model, words):
        from vllm import LLM

        self.llm = LLM(
            model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=KV_BLOCKS * BLOCK, max_num_seqs=16,
            max_num_batched_tokens=512, kv_cache_memory_bytes=KV_BLOCKS * BLOCK_BYTES, seed=0, disable_log_stats=False,
            **words,
        )  # fmt: skip
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.requests = requests()
        self.tokens, self.finished, self.round = {}, [], 0

    def begin(self):
        """A new round: ids are unique, books are empty."""
        self.round += 1
        self.tokens, self.finished = {}, []

    def add(self, *names):
        for name in names:
            ids, params = self.requests[name.split("#")[0]]
            self.llm.llm_engine.add_request(f"{self.round}/{name}", {"prompt_token_ids": ids}, params.clone())

    def step(self, times=1):
        for _ in range(times):
            for output in self.llm.llm_engine.step():
                name = output.request_id.split("/", 1)[1]
                self.tokens[name] = list(output.outputs[0].token_ids)
                if output.finished:
                    self.finished.append(name)

    def until(self, met, limit=3000):
        for _ in range(limit):
            if met():
                return
            self.step()
        raise RuntimeError(f"not reached: {self.core.switching_status()}")

    def run(self):
        """To the end. Returns the tokens of every request."""
        self.until(lambda: not self.llm.llm_engine.has_unfinished_requests())
        return self.tokens

    def ask(self, layout, mode):
        answer = self.core.switching_set_layout(layout, mode)
        assert answer["accepted"], answer
        return answer["switches"]

    def settle(self, layout, mode=0):
        self.ask(layout, mode)
        self.until(self.settled)

    def status(self):
        return self.core.switching_status()

    @property
    def layout(self):
        return self.status()["layout"]

    def nodes(self):
        return list(self.core.scheduler.nodes.values())

    def settled(self):
        return not self.status()["open"]

    def length(self, name):
        return len(self.tokens.get(name, ()))


GREEDY = [f"greedy-{k}" for k in range(8)]
SEEDED = [f"seeded-{k}" for k in range(4)]
SHORT = [f"short-{k}" for k in range(4)]
# vLLM's CPU backend fails when the prompt of a request with a seed is prefilled in chunks: they come first, whole
EVERYONE = [*SEEDED, "penalised", *GREEDY]


def each_mode(engine):
    """TP2, DP, TP2 again: tokens, and the iterations of both ranks in DP."""
    found = {}
    for name, layout in (("tp2", [2]), ("dp", [1, 1]), ("tp2_again", [2])):
        engine.settle(layout)
        engine.begin()
        engine.add(*EVERYONE)
        found[name] = engine.run()
        if name == "dp":
            found["batches"] = engine.llm.collective_rpc("switching_batches")
    return found


def sequential_merge(engine):
    """Running requests finish in DP first; those that come meanwhile wait for the group."""
    engine.settle([1, 1])
    engine.begin()
    engine.add(*GREEDY[:4])
    engine.until(lambda: all(engine.length(name) > 4 for name in GREEDY[:4]))
    (number,) = engine.ask([2], 0)
    engine.add(*GREEDY[4:])
    draining = engine.status()
    engine.until(engine.settled)
    return {
        "number": number,
        "draining": draining,
        "finished_first": list(engine.finished),
        "tokens": engine.run(),
    }


def hard_merge(engine):
    """DP requests stand still with their KV while the group serves, and go on when the ranks are apart again."""
    engine.settle([1, 1])
    engine.begin()
    engine.add(SEEDED[0], *GREEDY[:4])
    engine.until(lambda: all(engine.length(name) > 4 for name in [*GREEDY[:4], SEEDED[0]]))
    held = [row["kv_used_blocks"] for row in engine.status()["groups"]]
    (merge,) = engine.ask([2], 2)
    engine.add(*SHORT)
    engine.until(engine.settled)
    before = dict(engine.tokens)
    merged = engine.status()
    blocks = [sorted(node.held_blocks()) for node in engine.nodes()]
    engine.until(lambda: all(name in engine.finished for name in SHORT))
    stood = all(engine.tokens[name] == before[name] for name in [*GREEDY[:4], SEEDED[0]])
    engine.add(*GREEDY[4:6])
    engine.until(lambda: all(engine.length(name) > 4 for name in GREEDY[4:6]))
    (split,) = engine.ask([1, 1], 2)
    found = {"merge": merge, "split": split, "held": held, "blocks": blocks, "merged": merged, "stood": stood}
    return found | {"tokens": engine.run()}


def hard_split(engine):
    """Requests of a group that is split at once are recomputed, seeded and penalised ones too."""
    engine.settle([2])
    engine.begin()
    engine.add(*SEEDED, "penalised", *GREEDY[:3])
    engine.until(lambda: all(engine.length(name) > 7 for name in [*GREEDY[:3], *SEEDED, "penalised"]))
    (number,) = engine.ask([1, 1], 2)
    engine.add(*GREEDY[3:])
    return {"number": number, "tokens": engine.run()}


def soft_merge(engine):
    """The rank that is done first serves new requests in DP until the other is done; these are recomputed."""
    engine.settle([1, 1])
    engine.begin()
    engine.add("greedy-0", "short-0")  # one a rank
    engine.until(lambda: engine.length("greedy-0") > 1 and engine.length("short-0") > 1)
    (number,) = engine.ask([2], 1)
    engine.add(*GREEDY[4:])
    engine.until(lambda: "short-0" in engine.finished)
    engine.until(lambda: any(engine.length(name) for name in GREEDY[4:]))
    speculating = engine.status()
    return {"number": number, "speculating": speculating, "tokens": engine.run()}


def hurried(engine):
    """A switch that waits for stragglers is turned into a hard one."""
    engine.settle([1, 1])
    engine.begin()
    engine.add(*GREEDY[:2])
    engine.until(lambda: all(engine.length(name) > 1 for name in GREEDY[:2]))
    (number,) = engine.ask([2], 0)
    engine.step(3)
    refused = engine.core.switching_set_layout([1, 1], 0)
    engine.ask([2], 2)
    engine.until(engine.settled)
    early = list(engine.finished)
    engine.settle([1, 1], 2)
    return {"number": number, "refused": refused, "early": early, "tokens": engine.run()}


def long_context(engine):
    """What no rank can hold alone waits for the group."""
    engine.settle([1, 1])
    engine.begin()
    engine.add("long")
    engine.step(5)
    apart = engine.status()
    idle = not engine.core.scheduler.has_requests()
    engine.ask([2], 0)
    return {"apart": apart, "idle": idle, "tokens": engine.run()}


def aborted(engine):
    """Requests end from outside while they stand still, run, and wait."""
    engine.settle([1, 1])
    engine.begin()
    engine.add(*GREEDY[:4])
    engine.until(lambda: all(engine.length(name) > 1 for name in GREEDY[:4]))
    engine.settle([2], 2)
    engine.add("greedy-4")
    engine.until(lambda: engine.length("greedy-4") > 1)
    engine.add("long")
    engine.llm.llm_engine.abort_request(
        [f"{engine.round}/{name}" for name in ("greedy-0", "greedy-4", "long")]
    )
    engine.settle([1, 1], 2)
    return {"tokens": engine.run(), "after": engine.status()}


def storm(engine):
    """Switches of every mode to every layout, one after the other, while requests come and go: tokens by id."""
    world = sum(engine.layout)
    layouts = {2: ([1, 1], [2]), 4: ([1, 1, 1, 1], [2, 1, 1], [1, 1, 2], [2, 2], [4])}[world]
    draw = random.Random(0)
    engine.settle(layouts[0], 2)
    engine.begin()
    for turn in range(60):
        for name in draw.sample([*GREEDY, *SHORT, "penalised"], draw.randrange(3)):
            engine.add(f"{name}#{turn}")
        if engine.settled():
            engine.ask(draw.choice(layouts), draw.choice((1, 1, 2, 2, 2, 0)))
        engine.step(draw.randrange(1, 8))
    engine.until(engine.settled)
    engine.settle(layouts[-1], 2)
    engine.settle(layouts[0], 2)
    return {"tokens": engine.run(), "after": engine.status()}


def errors(engine):
    """Words that are wrong, answered in a sentence."""
    asked = ([3], 0), ([1], 0), ([1, 1], 7)
    return [engine.core.switching_set_layout(layout, mode) for layout, mode in asked]


def each_layout(engine):
    """Every kind of layout of four ranks: tokens."""
    found = {}
    for layout in ([4], [2, 2], [2, 1, 1], [1, 1, 1, 1]):
        engine.settle(layout, 2)
        engine.begin()
        engine.add(*EVERYONE)
        found["+".join(map(str, layout))] = engine.run()
    return found


def nested(engine):
    """Groups stand still inside groups, and each goes on when its turn comes."""
    engine.settle([1, 1, 1, 1])
    engine.begin()
    engine.add(*EVERYONE)
    engine.until(lambda: all(engine.length(name) > 1 for name in EVERYONE))
    standing = {}
    for turn, layout in enumerate(([2, 1, 1], [4], [2, 1, 1], [2, 2], [1, 1, 1, 1])):
        engine.settle(layout, 2)
        engine.step(3)
        rows = [(r["first"], r["length"], r["status"], r["num_running"]) for r in engine.status()["groups"]]
        standing[turn] = [row for row in rows if row[2] == "paused"]
    return {"standing": standing, "tokens": engine.run()}


OF_TWO = (
    each_mode, sequential_merge, hard_merge, hard_split, soft_merge, hurried, long_context, aborted, errors,
    storm,
)  # fmt: skip
SCENARIOS = {"two": OF_TWO, "four": (each_layout, nested, storm)}


def main():
    what, model, sink, *words = sys.argv[1:]
    if what == "plain":
        engine = Engine(model, {"tensor_parallel_size": 2, "enforce_eager": True, "enable_prefix_caching": False,
                                "block_size": 2 * BLOCK, "async_scheduling": False})  # fmt: skip
        engine.begin()
        engine.add(*EVERYONE, *SHORT, "long")
        found = {"tokens": engine.run()}
    else:
        engine = Engine(model, json.loads(words[0]) | {"block_size": BLOCK})
        found = {"memory": engine.llm.collective_rpc("switching_memory")}
        found |= {scenario.__name__: scenario(engine) for scenario in SCENARIOS[what]}
        found["status"] = engine.status()
    Path(sink).write_text(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        main()
