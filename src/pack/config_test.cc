#include "pack/config.h"

#include "pack/pack_testing.h"
#include "pack/synth.h"

namespace splash::pack {
namespace {

// A config.json of the family, nested as the published ones are; `extra` goes into text_config.
std::string family_config(const TargetGeometry& g, std::string_view top, std::string_view extra) {
  return fmt::format(
      R"({{"model_type":"qwen3_5",{}"vision_config":{{"depth":27}},"text_config":{{"model_type":"qwen3_5_text",{})"
      R"("hidden_size":{},"num_hidden_layers":{},"intermediate_size":{},"num_attention_heads":{},)"
      R"("num_key_value_heads":{},"linear_num_key_heads":{},"linear_num_value_heads":{},"vocab_size":{},)"
      R"("hidden_act":"silu","rope_parameters":{{"rope_theta":10000000,"rope_type":"default"}}}}}})",
      top, extra, g.hidden_size, g.layers.size(), g.intermediate_size, g.query_heads, g.kv_heads, g.key_heads,
      g.value_heads, g.vocab_size);
}

TEST(TargetConfig, EverySizeOfTheFamilyParsesWithItsDefaults) {
  for (const NamedGeometry& named : named_geometries()) {
    const std::string top = fmt::format("\"tie_word_embeddings\":{},", named.target.tied_head);
    // The value inside text_config is the wrong one on purpose: the top level wins.
    const std::string inside = fmt::format("\"tie_word_embeddings\":{},", !named.target.tied_head);
    const auto config = parse_target_config(family_config(named.target, top, inside), "config.json");
    ASSERT_OK(config);
    EXPECT_EQ(config->geometry, named.target) << named.name;
    EXPECT_FALSE(config->quantization);
  }
}

TEST(TargetConfig, Qwen38As27bAddsUp) {
  const TargetGeometry& g = named_geometries()[0].target;
  EXPECT_EQ(std::count(g.layers.begin(), g.layers.end(), Mixer::attention), 16);
  EXPECT_EQ(g.layers[3], Mixer::attention);
  EXPECT_EQ(g.layers[63], Mixer::attention);
  EXPECT_EQ(g.conv_channels(), 10'240);
  EXPECT_EQ(g.rotary_dim, 64);
}

TEST(TargetConfig, StatedValuesWinOverDefaults) {
  const std::string text =
      R"({"model_type":"qwen3_5_text","hidden_size":32,"num_hidden_layers":2,"intermediate_size":37,)"
      R"("num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"linear_num_key_heads":4,)"
      R"("linear_num_value_heads":8,"linear_key_head_dim":16,"linear_value_head_dim":24,"linear_conv_kernel_dim":2,)"
      R"("vocab_size":99,"layer_types":["full_attention","linear_attention"],"rms_norm_eps":1e-5,)"
      R"("max_position_embeddings":1024,"rope_theta":1e4,"partial_rotary_factor":0.5,"rope_scaling":null,)"
      R"("tie_word_embeddings":true,"num_experts":0})";
  const auto config = parse_target_config(text, "config.json");
  ASSERT_OK(config);
  const TargetGeometry& g = config->geometry;
  EXPECT_EQ(g.layers, (std::vector{Mixer::attention, Mixer::gdn}));
  EXPECT_EQ(g.head_dim, 32);
  EXPECT_EQ(g.rotary_dim, 16);
  EXPECT_EQ(g.rope_theta, 1e4);
  EXPECT_EQ(g.rms_eps, 1e-5f);
  EXPECT_EQ(g.key_dim, 16);
  EXPECT_EQ(g.value_dim, 24);
  EXPECT_EQ(g.conv_kernel, 2);
  EXPECT_EQ(g.max_positions, 1024);
  EXPECT_TRUE(g.tied_head);
}

struct Replaced {
  const char* from;
  const char* to;
  std::vector<std::string> named;
};

TEST(TargetConfig, RefusesWhatItCannotServeByName) {
  const std::string good = family_config(named_geometries()[2].target, "", "");
  ASSERT_OK(parse_target_config(good, "config.json"));
  const std::vector<Replaced> cases{
      {"\"qwen3_5\"", "\"qwen3_5_moe\"", {"model_type", "mixture of experts"}},
      {"\"qwen3_5_text\"", "\"qwen3_5_moe_text\"", {"text_config.model_type", "mixture of experts"}},
      {"\"qwen3_5\"", "\"llama\"", {"model_type", "llama"}},
      {"\"model_type\":\"qwen3_5\",", "", {"model_type", "missing"}},
      {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"gelu\"", {"text_config.hidden_act", "gelu"}},
      {"\"hidden_act\":\"silu\"", "\"attention_bias\":true", {"text_config.attention_bias"}},
      {"\"hidden_act\":\"silu\"", "\"attn_output_gate\":false", {"text_config.attn_output_gate"}},
      {"\"hidden_act\":\"silu\"", "\"num_experts\":256", {"text_config.num_experts"}},
      {"\"rope_type\":\"default\"", "\"rope_type\":\"yarn\"", {"rope_parameters.rope_type", "yarn"}},
      {"\"hidden_act\":\"silu\"",
       "\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}",
       {"rope_scaling.type", "linear"}},
      {"\"rope_theta\":10000000,", "", {"rope_theta", "missing"}},
      {"\"hidden_size\":2560", "\"hidden_size\":0", {"text_config.hidden_size"}},
      {"\"hidden_size\":2560", "\"hidden_size\":1e18", {"text_config.hidden_size"}},
      {"\"hidden_size\":2560", "\"hidden_size\":\"2560\"", {"text_config.hidden_size"}},
      {"\"hidden_size\":2560", "\"hidden_size\":null", {"text_config.hidden_size", "missing"}},
      {"\"num_hidden_layers\":32", "\"num_hidden_layers\":100000", {"num_hidden_layers"}},
      {"\"num_hidden_layers\":32,", "", {"num_hidden_layers", "missing"}},  // never a default: models were cut short
      {"\"hidden_act\":\"silu\"", "\"layer_types\":[\"full_attention\"]", {"layer_types", "32"}},
      {"\"hidden_act\":\"silu\"", "\"layer_types\":[\"mamba\"]", {"layer_types[0]", "mamba"}},
      {"\"num_key_value_heads\":4", "\"num_key_value_heads\":3", {"query_heads"}},
      {"\"linear_num_value_heads\":32", "\"linear_num_value_heads\":33", {"value_heads"}},
      {"\"hidden_act\":\"silu\"", "\"quantization_config\":{\"quant_method\":\"fp8\"}", {"quant_method"}},
      {"\"hidden_act\":\"silu\"",
       "\"quantization\":{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}",
       {"mode", "mxfp4"}},
      {"\"hidden_act\":\"silu\"", "\"quantization\":{\"bits\":9,\"group_size\":64}", {"quantization.bits"}},
      {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"silu\",\"hidden_act\":\"silu\"", {"twice"}},
      {"\"text_config\":{", "\"text_config\":[{", {"JSON"}}};
  for (const Replaced& one : cases) {
    SCOPED_TRACE(one.to);
    std::vector<std::string> named = one.named;
    named.emplace_back("config.json");
    expect_error(parse_target_config(replaced(good, one.from, one.to), "config.json"), named);
  }
}

TEST(TargetConfig, ReadsMlxQuantizationWithOverrides) {
  const std::string top =
      R"("quantization":{"group_size":64,"bits":4,"mode":"affine","language_model.lm_head":{"group_size":32,"bits":8},)"
      R"("language_model.model.embed_tokens":false},)";
  const auto config = parse_target_config(family_config(named_geometries()[2].target, top, ""), "config.json");
  ASSERT_OK(config);
  ASSERT_TRUE(config->quantization);
  EXPECT_EQ(config->quantization->standard.bits, 4);
  EXPECT_EQ(config->quantization->overrides.at("language_model.lm_head")->bits, 8);
  EXPECT_EQ(config->quantization->overrides.at("language_model.lm_head")->group_size, 32);
  EXPECT_FALSE(config->quantization->overrides.at("language_model.model.embed_tokens"));
}

TEST(DraftConfig, Published27bParses) {
  const std::string text =
      R"({"architectures":["DFlash2DraftModel"],"model_type":"qwen3","is_causal":false,"attention_bias":false,)"
      R"("hidden_act":"silu","hidden_size":5120,"intermediate_size":17408,"num_hidden_layers":5,)"
      R"("num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"vocab_size":248320,)"
      R"("rope_parameters":{"rope_theta":10000000,"rope_type":"default"},"sliding_window":2048,"use_sliding_window":true,)"
      R"("layer_types":["sliding_attention","sliding_attention","sliding_attention","sliding_attention","sliding_attention"],)"
      R"("num_target_layers":64,"dflash_config":{"block_size":8,"mask_token_id":248070,)"
      R"("target_layer_ids":[5,19,33,47,61],"conv_kernel_size":2,"conv_group_size":16,"selector_rank":256,"selector_top_k":16}})";
  const auto config = parse_draft_config(text, "config.json");
  ASSERT_OK(config);
  EXPECT_EQ(config->geometry, named_geometries()[0].draft);
  EXPECT_EQ(config->target_layers, 64);
  EXPECT_OK(check_match(named_geometries()[0].target, config->geometry, ""));
}

TEST(DraftConfig, RefusesWhatItCannotServeByName) {
  const std::string good = read_file(fixture("dense-draft") / "config.json");
  ASSERT_OK(parse_draft_config(good, "draft.json"));
  const std::vector<Replaced> cases{
      {"\"is_causal\": false", "\"is_causal\": true", {"is_causal"}},
      {"\"is_causal\": false,", "", {"is_causal", "missing"}},
      {"\"selector_rank\": 32,", "", {"selector_rank", "DFlash 2"}},
      {"\"is_causal\": false", "\"is_causal\": false, \"output_multiplier\": 2.0", {"output_multiplier"}},
      {"\"is_causal\": false", "\"is_causal\": false, \"final_logit_softcapping\": 30", {"final_logit_softcapping"}},
      {"\"is_causal\": false", "\"is_causal\": false, \"sample_from_anchor\": true", {"sample_from_anchor"}},
      {"\"conv_kernel_size\": 2", "\"conv_kernel_size\": 3", {"conv_kernel_size"}},
      {"\"conv_group_size\": 16", "\"conv_group_size\": 15", {"conv_group"}},
      {"\"mask_token_id\": 1023", "\"mask_token_id\": 1024", {"mask_token_id"}},
      {"\"block_size\": 8", "\"block_size\": 1", {"block_size"}},
      {"\"block_size\": 8,", "", {"block_size", "missing"}},
      {"\"sliding_window\": 32", "\"sliding_window\": null", {"sliding_window"}},
      {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", {"rope_type"}},
      {"\"head_dim\": 64,", "", {"head_dim", "missing"}},
      {"\n   0,\n   2\n", "2, 0", {"target_layer_ids[1]"}},
      {"\n   0,\n   2\n", "", {"target_layer_ids"}}};
  for (const Replaced& one : cases) {
    SCOPED_TRACE(one.to);
    std::vector<std::string> named = one.named;
    named.emplace_back("draft.json");
    expect_error(parse_draft_config(replaced(good, one.from, one.to), "draft.json"), named);
  }
}

TEST(DraftConfig, BlockSizeMayStandAtTheTop) {
  std::string text = replaced(read_file(fixture("dense-draft") / "config.json"), "\"block_size\": 8,", "");
  text = replaced(text, "\"is_causal\"", "\"block_size\": 16, \"is_causal\"");
  const auto config = parse_draft_config(text, "config.json");
  ASSERT_OK(config);
  EXPECT_EQ(config->geometry.block_size, 16);
}

TEST(Configs, FixturesOfOtherKindsAreNamed) {
  expect_error(parse_target_config(read_file(fixture("moe") / "config.json"), "config.json"), {"mixture of experts"});
  EXPECT_OK(parse_target_config(read_file(fixture("vision") / "config.json"), "config.json"));
}

}  // namespace
}  // namespace splash::pack
