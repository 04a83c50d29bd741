#include "runtime/model/cuda/gemm/gemm_choices.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/base/error.hpp"
#include "runtime/base/json.hpp"

namespace spillway::model::cuda {
namespace {

constexpr int kFormat = 1;
constexpr std::size_t kDigits = 16;  ///< of a word

std::string to_hex(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<GemmAlgorithm> from_hex(std::string_view text) {
  GemmAlgorithm algorithm{};
  if (text.size() != algorithm.size() * kDigits) return std::nullopt;
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    const char* first = text.data() + i * kDigits;
    const auto [end, error] = std::from_chars(first, first + kDigits, algorithm[i], 16);
    if (error != std::errc{} || end != first + kDigits) return std::nullopt;
  }
  return algorithm;
}

const char* name_of(GemmOutput output) {
  switch (output) {
    case GemmOutput::compute: return "compute";
    case GemmOutput::fp32: return "fp32";
    case GemmOutput::gradient: return "gradient";
  }
  return "";
}

std::string strides_of(const GemmShape& shape) {
  const bool strided = shape.a_stride > 0 || shape.b_stride > 0 || shape.out_stride > 0;
  return strided
             ? fmt::format("/rows of {},{},{}", shape.a_stride, shape.b_stride, shape.out_stride)
             : "";
}

std::string packed_name_of(const GemmShape& shape) {
  const char* added = shape.bias && shape.residual ? "bias+residual"
                      : shape.bias                 ? "bias"
                      : shape.residual             ? "residual"
                                                   : "plain";
  return fmt::format("{}x{}x{}/{}{}/{}/{}", shape.rows, shape.columns, shape.inner,
                     shape.transpose_a ? 't' : 'n', shape.transpose_b ? 't' : 'n', added,
                     name_of(shape.output));
}

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::invalid_argument, "table of matrix product algorithms: " + reason);
}

}  // namespace

std::string name_of(const GemmShape& shape) { return packed_name_of(shape) + strides_of(shape); }

std::string GemmKey::text() const {
  return fmt::format("{}/{}/{}/{}/{}{}{}", device, library,
                     tf32 ? "tf32" : spillway::name_of(compute), packed_name_of(shape),
                     aligned ? "aligned" : "unaligned", deterministic ? "" : "/any order",
                     strides_of(shape));
}

void GemmChoices::take(const GemmChoices& other) {
  for (const auto& [key, algorithm] : other.table_) table_[key] = algorithm;
}

std::size_t GemmChoices::common(const GemmChoices& other) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      table_, [&](const auto& entry) { return other.find(entry.first) == entry.second; }));
}

std::size_t best_of(std::span<const GemmTiming> timings) {
  const auto best = std::ranges::min_element(timings, {}, &GemmTiming::milliseconds);
  const double first = timings.front().milliseconds;
  if (best->milliseconds > first * (1 - kLeastGemmGain)) return 0;
  return static_cast<std::size_t>(best - timings.begin());
}

std::optional<GemmAlgorithm> GemmChoices::find(const std::string& key) const {
  const auto entry = table_.find(key);
  if (entry == table_.end()) return std::nullopt;
  return entry->second;
}

std::string GemmChoices::to_json() const {
  nlohmann::json algorithms = nlohmann::json::object();
  for (const auto& [key, algorithm] : table_) algorithms[key] = to_hex(algorithm);
  return nlohmann::json({{"format", kFormat}, {"algorithms", algorithms}}).dump(2);
}

GemmChoices GemmChoices::from_json(std::string_view text) {
  const auto document = json_or_null(text);
  if (!document.is_object()) refuse("not a JSON object");
  const auto format = document.find("format");
  if (format == document.end() || *format != kFormat) {
    refuse(fmt::format("\"format\" must be {}", kFormat));
  }
  const auto algorithms = document.find("algorithms");
  if (algorithms == document.end() || !algorithms->is_object()) {
    refuse("\"algorithms\" must be an object");
  }
  GemmChoices choices;
  for (const auto& [key, value] : algorithms->items()) {
    const auto algorithm =
        value.is_string() ? from_hex(value.get_ref<const std::string&>()) : std::nullopt;
    if (!algorithm) refuse(fmt::format("\"{}\" must be 128 hexadecimal digits", key));
    choices.set(key, *algorithm);
  }
  return choices;
}

}  // namespace spillway::model::cuda
