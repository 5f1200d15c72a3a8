"""One architecture of every family of timm, on the meta device: how many depths, and how many channels in all.

benchmarks/boundaries.py walks all of them; these 90 are the quickest of their families.
"""

import pytest
import timm
import torch

from spear_hf.boundaries import find_boundaries

DEPTHS_AND_CHANNELS = {
    "beitv2_base_patch16_224": (5, 3840),
    "test_byobnet": (5, 504),
    "cait_s24_224": (5, 1920),
    "coat_lite_tiny": (5, 832),
    "convit_tiny": (5, 960),
    "convmixer_1024_20_ks9_p14": (5, 5120),
    "test_convnext3": (5, 352),
    "cpubone_nano": (5, 372),
    "crossvit_9_240": (4, 1536),
    "csatv2": (5, 690),
    "darknet17": (6, 2016),
    "cspnext_tiny": (5, 744),
    "davit_tiny": (5, 1536),
    "deepseek_vit_412m_enc": (5, 5120),
    "deit_small_distilled_patch16_224": (5, 1920),
    "densenet121": (5, 2880),
    "dla34": (4, 960),
    "dpn48b": (5, 1818),
    "edgenext_xx_small": (5, 352),
    "efficientformer_l1": (5, 864),
    "efficientformerv2_s1": (5, 456),
    "test_efficientnet": (6, 208),
    "efficientvim_m3": (3, 2336),
    "efficientvit_l1": (5, 992),
    "efficientvit_m2": (4, 672),
    "eva02_small_patch14_336": (5, 1920),
    "fasternet_t2": (5, 1536),
    "fastvit_t8": (5, 768),
    "focalnet_tiny_srf": (5, 1536),
    "gcvit_xxtiny": (5, 1024),
    "gemma4_vit_167m": (5, 3840),
    "ghostnet_100": (5, 320),
    "hgnet_small": (5, 2688),
    "hiera_tiny_224": (5, 1536),
    "sam2_hiera_tiny": (5, 1536),
    "hrnet_w18_small": (5, 592),
    "iformer_t": (5, 512),
    "inception_next_atto": (5, 640),
    "inception_resnet_v2": (4, 3808),
    "inception_v3": (4, 3296),
    "inception_v4": (4, 3328),
    "lcnetv2_small": (5, 1488),
    "levit_512": (4, 2816),
    "lowformer_e2": (5, 992),
    "test_mambaout": (5, 176),
    "test_coatnet": (5, 352),
    "poolformer_s12": (5, 1088),
    "resmlp_12_224": (5, 1920),
    "tf_mobilenetv3_small_minimal_100": (5, 200),
    "mobilenetv5_base": (5, 2496),
    "mvitv2_tiny": (5, 1536),
    "naflexvit_base_patch16_parfac_gap": (5, 3840),
    "nasnetalarge": (4, 10584),
    "nest_tiny": (4, 117),
    "nextvit_small": (5, 1952),
    "test_nfnet": (5, 448),
    "pit_ti_224": (4, 512),
    "pnasnet5large": (4, 11610),
    "pvt_v2_b0": (5, 544),
    "qwen3_vit_88m_enc": (5, 3840),
    "rdnet_tiny": (5, 2544),
    "regnetx_002": (5, 632),
    "repghostnet_130": (5, 416),
    "repvit_m2": (5, 1024),
    "resnet10t": (5, 1024),
    "resnetv2_18": (5, 1024),
    "rexnetr_100": (6, 464),
    "selecsls42": (4, 928),
    "legacy_seresnet18": (5, 1024),
    "sequencer2d_s": (5, 1536),
    "shvit_s1": (4, 800),
    "starnet_s100": (5, 332),
    "swiftformer_xs": (5, 484),
    "swin_tiny_patch4_window7_224": (5, 1536),
    "swinv2_tiny_window16_256": (5, 1536),
    "swinv2_cr_tiny_224": (5, 1536),
    "tiny_vit_21m_224": (5, 1344),
    "tnt_s_legacy_patch16_224": (5, 2016),
    "tresnet_m": (5, 3328),
    "twins_svt_small": (5, 1024),
    "vgg11": (5, 1472),
    "visformer_tiny": (4, 768),
    "test_vit": (5, 320),
    "vit_srelpos_medium_patch16_224": (5, 2560),
    "samvit_base_patch16_224": (5, 3840),
    "volo_d1_384": (5, 1536),
    "ese_vovnet19b_slim": (5, 1392),
    "legacy_xception": (5, 2200),
    "xception65p": (5, 3224),
    "xcit_small_12_p16_224": (5, 1920),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEPTHS_AND_CHANNELS)
def test_a_family_has_the_depths_and_channels_it_had(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name, num_classes=10).eval()
    found = find_boundaries(model)
    depths = sorted({b.depth for b in found})
    assert depths == list(range(len(depths)))
    assert (len(depths), sum(b.channels for b in found)) == DEPTHS_AND_CHANNELS[name]
