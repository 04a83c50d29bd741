#include <fmt/format.h>

#include <memory>

#include "runtime/base/error.hpp"
#include "runtime/data/token_file.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/engine/run/kept_checkpoints.hpp"
#include "runtime/engine/run/reader.hpp"
#include "runtime/model/hf/checkpoint.hpp"
#include "runtime/model/hf/safetensors.hpp"
#include "tools/cli/commands.hpp"
#include "tools/cli/console.hpp"
#include "tools/cli/hub.hpp"
#include "tools/cli/printable.hpp"

namespace spillway::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

ordered_json model_info(const model::ModelConfig& config, const model::ModelLayout& layout) {
  return {{"family", model::name_of(config.family)},
          {"parameters", layout.parameters().value()},
          {"blocks", layout.blocks.size()},
          {"layers", config.layers},
          {"width", config.width},
          {"heads", config.heads},
          {"kv_heads", config.kv_heads},
          {"vocab_size", config.vocab_size},
          {"max_context", config.max_context},
          {"tied_head", config.tied_head}};
}

ordered_json run_info(const fs::path& path) {
  const engine::RunReader reader(path);
  const engine::TrainingState& state = reader.state();
  return {{"kind", "run"},
          {"id", to_text(reader.manifest().id)},
          {"step", state.step},
          {"updates", state.updates},
          {"skipped", state.skipped},
          {"loss_scale", state.loss_scale.scale},
          {"windows_drawn", state.cursor},
          {"ranks", reader.saved().grid().ranks()},
          {"data", reader.config().data},
          {"compute", name_of(reader.config().options.compute)},
          {"kept_checkpoints", engine::KeptCheckpoints::steps(engine::RunDirectory(path))},
          {"model", model_info(reader.config().model, reader.layout())}};
}

ordered_json checkpoint_info(const fs::path& path) {
  const model::ModelConfig config = model::load_model_config(path / "config.json");
  const model::ModelLayout layout = model::make_layout(config);
  const model::CheckpointReader reader(path, config, layout);
  return {{"kind", "hf_checkpoint"},
          {"dtype", name_of(reader.dtype())},
          {"model", model_info(config, layout)}};
}

ordered_json data_info(const fs::path& directory) {
  const data::Meta meta = data::load_meta(directory / "meta.json");
  ordered_json document{{"kind", "data"}, {"vocab_size", meta.vocab_size}};
  if (meta.tokenizer) document["tokenizer"] = *meta.tokenizer;
  for (const char* name : {"train", "val"}) {
    const fs::path file = directory / fmt::format("{}.bin", name);
    if (fs::exists(file)) {
      document[fmt::format("{}_tokens", name)] = data::TokenFile(file, meta.dtype).size();
    }
  }
  return document;
}

ordered_json safetensors_info(const fs::path& path) {
  const model::SafetensorsFile file(path);
  // An object of this library looks a key up in linear time: its pairs are put down as they come.
  ordered_json::object_t tensors;
  tensors.reserve(file.header().tensors.size());
  for (const auto& [name, tensor] : file.header().tensors) {
    const ordered_json entry{{"type", tensor.type}, {"shape", tensor.shape}};
    tensors.push_back({name, entry});
  }
  ordered_json document{{"kind", "safetensors"}};
  document["tensors"] = std::move(tensors);
  return document;
}

ordered_json info(const fs::path& path) {
  check(fs::exists(path), ErrorCode::invalid_argument,
        fmt::format("{} does not exist", path.string()));
  if (path.extension() == ".safetensors") return safetensors_info(path);
  if (engine::holds_run(engine::RunDirectory(path))) return run_info(path);
  if (fs::exists(path / "meta.json")) return data_info(path);
  if (fs::exists(path / "config.json")) return checkpoint_info(path);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is neither a run, a checkpoint, a data directory nor a safetensors "
                          "file",
                          path.string()));
}

void print(const ordered_json& document, int indent) {
  for (const auto& [key, value] : document.items()) {
    if (value.is_object()) {
      answer("{:{}}{}\n", "", indent, printable_name(key));
      print(value, indent + 2);
    } else {
      answer("{:{}}{:<16} {}\n", "", indent, printable_name(key),
             value.is_string() ? printable_name(value.get<std::string>())
                               : printable_message(value.dump()));
    }
  }
}

}  // namespace

void add_info(Command app, Session& session) {
  auto path = std::make_shared<fs::path>();
  Command command = add_command(
      app, session, "info", "Says what a run, checkpoint, data directory or safetensors file holds",
      [path, &session] {
        ordered_json document = info(find_checkpoint(*path));
        if (!session.json) print(document, 0);
        return document;
      });
  command
      .add_option(
          "path", *path,
          "This is described: a run, an HF checkpoint, a data directory or a safetensors file")
      .required();
}

}  // namespace spillway::cli
