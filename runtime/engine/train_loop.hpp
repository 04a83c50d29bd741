// The training loop around a Trainer: data, configuration, metrics, evaluation, commits, resume.
// `spillway train` is this function and a face.
#pragma once

#include <atomic>

#include "runtime/engine/run/train_request.hpp"
#include "runtime/engine/train_events.hpp"

namespace spillway::engine {

/// Trains until the last step, or until `*interrupt` becomes non-zero on any rank, then commits.
/// Throws `spillway::Error`; the run then holds its last commit, and the other ranks end with an
/// error that names this one and the reason.
[[nodiscard]] TrainReport train(const TrainRequest& request, TrainObserver& observer,
                                const std::atomic<int>& interrupt);

}  // namespace spillway::engine
