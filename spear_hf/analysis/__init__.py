"""The paper's configuration analysis: what steering does to representations, and which part of SPeaR does what.

    similarity   AMD and linear CKA, pure functions of tensors
    recording    what passes each boundary of a SpearModel
    probe        a linear probe on frozen features, and its gap to the classifier
    placement    stem, stem+1, early, deep, all
    adapted      learn for a number of updates, then look with the RSPs held
    drift        AMD, CKA and probe of the five placements
    gating       the hard gate on and off; a stream without confident images
    mixing       error against alpha and batch size
    tables       means over rows; figures draws them

`examples/analyze.py` runs them. Probes need the extra `analysis`.
"""

from spear_hf.analysis.adapted import ImageSet, Look, answer_online, answers, learn, look
from spear_hf.analysis.drift import Adapted, adapted_representations, drift, separability, source_representations
from spear_hf.analysis.gating import gate_ablation, scarce_confidence, source_entropy, without_confident
from spear_hf.analysis.mixing import mixing_errors
from spear_hf.analysis.placement import placed, placements
from spear_hf.analysis.probe import ProbeResult, accuracy, probe_accuracy, probe_features
from spear_hf.analysis.recording import CLASSIFIER, Recording, find_classifier, pooled, recording
from spear_hf.analysis.similarity import amd, linear_cka

__all__ = [
    "CLASSIFIER",
    "Adapted",
    "ImageSet",
    "Look",
    "ProbeResult",
    "Recording",
    "accuracy",
    "adapted_representations",
    "amd",
    "answer_online",
    "answers",
    "drift",
    "find_classifier",
    "gate_ablation",
    "learn",
    "linear_cka",
    "look",
    "mixing_errors",
    "placed",
    "placements",
    "pooled",
    "probe_accuracy",
    "probe_features",
    "recording",
    "scarce_confidence",
    "separability",
    "source_entropy",
    "source_representations",
    "without_confident",
]
