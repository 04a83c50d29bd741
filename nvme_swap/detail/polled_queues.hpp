// Block devices whose completions can be polled for. Any thread.
#pragma once

#include <span>
#include <string>

namespace spillway::nvme_swap::detail {

/// Returns why completions of these files cannot be polled for; empty if they can. A queue that the
/// device does not poll would cost a spinning thread and gain nothing.
[[nodiscard]] std::string obstacle_to_polling(std::span<const int> files);

}  // namespace spillway::nvme_swap::detail
