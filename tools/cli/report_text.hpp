// The report of a training run for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/engine/train_loop.hpp"

namespace spillway::cli {

[[nodiscard]] std::string to_text(const engine::TrainReport& report);
[[nodiscard]] nlohmann::ordered_json to_json(const engine::TrainReport& report);

}  // namespace spillway::cli
