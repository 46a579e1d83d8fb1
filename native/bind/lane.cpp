#include "stores/lane.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <tuple>

#include "arrays.hpp"

namespace stepwell::bind {
namespace {

// To let go of the GIL and take it back costs as much as a copy of this many bytes.
constexpr std::size_t kLongCopy = std::size_t{1} << 18;

using PixelsIn = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;
using Seen = std::tuple<nb::bytes, double, double, double>;

std::optional<Seen> read(const LaneReader& lane, std::uint64_t number, BytesOut pixels) {
  std::optional<LaneFrame> found;
  {
    std::optional<Unlocked> unlocked;
    if (pixels.size() > kLongCopy) unlocked.emplace();
    found = lane.read(number, span_of(pixels));
  }
  if (!found) return std::nullopt;
  const auto& [metadata, metrics] = *found;
  return Seen(nb::bytes(metadata.data(), metadata.size()), metrics.reward, metrics.rolling_return,
              metrics.step_rate_hz);
}

}  // namespace

void bind_lane(nb::module_& m) {
  nb::class_<LaneWriter>(m, "LaneWriter", "Frames put into shared memory, one after another.")
      .def(
          "__init__",
          [](LaneWriter* self, nb::object name, std::uint32_t capacity, std::uint32_t width,
             std::uint32_t height, std::uint32_t channels, std::uint32_t pixel_crc,
             std::uint32_t metadata_bytes) {
            new (self) LaneWriter(path_bytes(name), capacity, width, height, channels, pixel_crc,
                                  metadata_bytes);
          },
          "name"_a, "capacity"_a, "width"_a, "height"_a, "channels"_a, "pixel_crc"_a,
          "metadata_bytes"_a)
      .def_prop_ro("metadata_bytes", [](const LaneWriter& lane) { return lane.layout().metadata_bytes(); })
      .def_prop_ro("open", &LaneWriter::open, "Whether this process may publish.")
      .def(
          "publish",
          [](LaneWriter& lane, PixelsIn frame, nb::bytes metadata, double reward, double rolling_return,
             double step_rate_hz) {
            const auto pixels = std::as_bytes(std::span(frame.data(), frame.size()));
            const std::span text(reinterpret_cast<const std::byte*>(metadata.c_str()), metadata.size());
            std::optional<Unlocked> unlocked;
            if (pixels.size() > kLongCopy) unlocked.emplace();
            return lane.publish(pixels, text, {reward, rolling_return, step_rate_hz});
          },
          "frame"_a.noconvert(), "metadata"_a, "reward"_a, "rolling_return"_a, "step_rate_hz"_a,
          "Put a frame into its slot; returns its number.")
      .def(
          "close",
          [](LaneWriter& lane) {
            const Unlocked unlocked;
            lane.close();
          },
          "Mark it as closed for readers, and remove the segment.");
  nb::class_<LaneReader>(m, "LaneReader", "The segment of one writer, read.")
      .def(
          "__init__",
          [](LaneReader* self, nb::object name) { new (self) LaneReader(path_bytes(name)); }, "name"_a)
      .def_prop_ro("path", [](const LaneReader& lane) { return nb::str(path_of(lane.path())); })
      .def_prop_ro("capacity", [](const LaneReader& lane) { return lane.layout().capacity; })
      .def_prop_ro("shape",
                   [](const LaneReader& lane) {
                     const LaneLayout& layout = lane.layout();
                     return std::tuple(layout.height, layout.width, layout.channels);
                   })
      .def_prop_ro("pixel_crc", [](const LaneReader& lane) { return lane.layout().pixel_crc; })
      .def("head", &LaneReader::head, "The number of the newest frame; 0: none.")
      .def("closed", &LaneReader::closed, "Whether no frame will come any more.")
      .def("replaced", &LaneReader::replaced, "Whether another segment has the name now.")
      .def(
          "wait",
          [](const LaneReader& lane, std::uint64_t head, double max_s) {
            const auto limit = std::chrono::nanoseconds(std::llround(max_s * 1e9));
            const Unlocked unlocked;
            lane.wait(head, limit);
          },
          "head"_a, "max_s"_a, "Wait for a new head, at most `max_s` seconds.")
      .def("read", &read, "number"_a, "pixels"_a.noconvert(),
           "Copy a frame into the caller's memory; metadata and metrics, or None when it is gone.");
}

}  // namespace stepwell::bind
