// The plans of an embedded trainer.
#pragma once

#include <cstdint>

namespace spillway::engine {

/// What the control thread runs. Where parameters are streamed, `step` is one forward pass.
enum class EmbeddedPlan : std::uint8_t { step, backward, norms, update };

}  // namespace spillway::engine
