// The words of a configuration: names of enumerators, and what becomes of DeepSpeed's keys that
// Spillway has no use for. Constant tables; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/config/train_options.hpp"

namespace spillway::config {

/// One enumerator as configuration and command line spell it.
template <class Enum>
struct Named {
  std::string_view name;
  Enum value;
};

/// Returns every enumerator of `Enum`, in the order in which messages list them.
template <class Enum>
[[nodiscard]] std::span<const Named<Enum>> names_of();

template <>
std::span<const Named<DType>> names_of<DType>();
template <>
std::span<const Named<StateFormat>> names_of<StateFormat>();
template <>
std::span<const Named<data::Order>> names_of<data::Order>();
template <>
std::span<const Named<cpu_adam::Isa>> names_of<cpu_adam::Isa>();
template <>
std::span<const Named<nvme_swap::EngineKind>> names_of<nvme_swap::EngineKind>();
template <>
std::span<const Named<ScheduleKind>> names_of<ScheduleKind>();
template <>
std::span<const Named<UpdateMode>> names_of<UpdateMode>();
template <>
std::span<const Named<WorkOrder>> names_of<WorkOrder>();
template <>
std::span<const Named<PipelineSchedule>> names_of<PipelineSchedule>();
template <>
std::span<const Named<SumOrder>> names_of<SumOrder>();
template <>
std::span<const Named<DecayScope>> names_of<DecayScope>();
template <>
std::span<const Named<AttentionChoice>> names_of<AttentionChoice>();
template <>
std::span<const Named<Checkpointing>> names_of<Checkpointing>();
template <>
std::span<const Named<Residency>> names_of<Residency>();
template <>
std::span<const Named<StateHome>> names_of<StateHome>();
template <>
std::span<const Named<SumsHome>> names_of<SumsHome>();
template <>
std::span<const Named<DeviceKind>> names_of<DeviceKind>();

template <class Enum>
[[nodiscard]] std::string_view config_name(Enum value) {
  for (const Named<Enum>& each : names_of<Enum>()) {
    if (each.value == value) return each.name;
  }
  return "?";
}

/// Answer to a DeepSpeed key that Spillway has no use for.
enum class Answer : std::uint8_t {
  note,             ///< it is accepted, and a note gives the reason
  note_when_on,     ///< the same, and only where it is switched on
  refuse_when_on,   ///< it is accepted while it is off, and refused with the reason
  refuse_when_off,  ///< the same of what Spillway always has, where it is `false`
  refuse,           ///< it is refused with the reason wherever it is given
};

/// A key is off where it is `false`, absent, a number up to 1, or an object whose `enabled` is not
/// true.
struct ForeignKey {
  std::string_view section;  ///< its path; "" at the top
  std::string_view key;
  Answer answer;
  std::string_view reason;
  /// Keys of its object by their paths, with blanks between; below "a.*" every name may stand.
  std::string_view inner = "*";
};
[[nodiscard]] std::span<const ForeignKey> foreign_keys();
/// Returns the words of `inner`.
[[nodiscard]] std::vector<std::string_view> inner_keys(const ForeignKey& key);

/// Number of edits (insert, delete, replace, swap neighbours) from `b` to `a`.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace spillway::config
