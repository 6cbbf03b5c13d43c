/* release_config.h - the released TurboVAED config, for tests that change it. */
#ifndef M2_TESTS_MODEL_VAE_RELEASE_CONFIG_H
#define M2_TESTS_MODEL_VAE_RELEASE_CONFIG_H

static const char turbo_release_config[] =
    "{\"_class_name\": \"TurboVAED\", \"in_channels\": 3, \"out_channels\": 3,\n"
    " \"latent_channels\": 48, \"decoder_block_out_channels\": [64, 128, 256, 512],\n"
    " \"decoder_layers_per_block\": [2, 2, 2, 3, 3],\n"
    " \"decoder_spatio_temporal_scaling\": [false, true, true, true],\n"
    " \"decoder_spatio_only\": [false, true, false, false],\n"
    " \"decoder_is_dw_conv\": [false, false, false, false, false], \"decoder_dw_kernel_size\": 5,\n"
    " \"decoder_causal\": false, \"patch_size\": 2, \"patch_size_t\": 1,\n"
    " \"resnet_norm_eps\": 1e-06, \"scaling_factor\": 1.0, \"first_chunk_size\": 7,\n"
    " \"step_size\": 7, \"spatial_compression_ratio\": 16, \"temporal_compression_ratio\": 4,\n"
    " \"use_unpatchify\": true}\n";

#endif
