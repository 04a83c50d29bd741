#include "tools/cli/exporting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "runtime/engine/run/contents.hpp"
#include "runtime/engine/run/reader.hpp"
#include "runtime/engine/run/tokenizer.hpp"
#include "runtime/model/hf/tokenizer_files.hpp"

namespace spillway::cli {
namespace {

/// What replaces a run or a directory above one would destroy it.
void check_target(const std::filesystem::path& out) {
  const auto run = engine::run_in(out);
  check(!run.has_value(), ErrorCode::invalid_argument,
        fmt::format("{} holds the run {}; export into a directory of its own", out.string(),
                    run ? run->string() : ""));
}

Exported write(const ExportRequest& request, const std::function<bool()>& stops) {
  const engine::RunReader reader(request.run);
  const DType dtype = request.dtype.value_or(reader.config().options.compute);
  model::CheckpointWriter writer(
      request.out, reader.config().model, reader.layout(),
      {.dtype = dtype, .max_shard = request.max_shard, .if_exists = request.if_exists});
  std::vector<float> masters;
  const auto& blocks = reader.layout().blocks;
  // A tile of the run at a time: no model is too large for the memory that is left.
  const std::uint64_t tile = reader.config().options.tile_parameters;
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    const std::uint64_t count = blocks[block].parameters.value();
    for (std::uint64_t first = 0; first < count; first += tile) {
      if (stops()) throw ExportStopped();
      masters.resize(std::min(tile, count - first));
      reader.read(BlockIndex{block}, ElementCount{first}, masters);
      writer.append(BlockIndex{block}, std::as_bytes(std::span(masters)), DType::fp32);
    }
  }
  const std::filesystem::path tokenizer = engine::tokenizer_directory(request.run);
  for (const std::string& name : model::tokenizer_files(tokenizer)) {
    writer.add_file(name, model::read_tokenizer_file(tokenizer / name));
  }
  writer.finish();
  return {.step = reader.state().step,
          .parameters = reader.layout().parameters().value(),
          .dtype = dtype};
}

}  // namespace

Exported export_run(const ExportRequest& request, const std::function<bool()>& stops) {
  check_target(request.out);
  return engine::retry_overtaken([&] { return write(request, stops); });
}

}  // namespace spillway::cli
