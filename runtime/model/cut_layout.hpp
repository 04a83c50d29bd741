// The layout of a model whose matrices are cut into tiles of rows. Pure.
#pragma once

#include "runtime/model/parameter_layout.hpp"

namespace spillway::model::detail {

/// Returns `whole`, the uncut layout of `config`, with its matrices in blocks of at most
/// `operator_tile` parameters; see ModelLayout.
[[nodiscard]] ModelLayout cut_layout(const ModelConfig& config, const ModelLayout& whole,
                                     std::uint64_t operator_tile);

}  // namespace spillway::model::detail
