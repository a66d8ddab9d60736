// Collects what the including file compiled; included last.
#pragma once

namespace {

sgl_spec::Kernels make_table(const char* name) {
  sgl_spec::Kernels t{};
  t.name = name;
  t.panel_width[0] = Fp32::kPanel;
  t.panel_width[1] = Bf16::kPanel;
  t.panel_width[2] = Int8::kPanel;
  t.tile_rows = kTileRows;
  t.pack_rows = pack_rows;
  t.linear[0] = linear<Fp32>;
  t.linear[1] = linear<Bf16>;
  t.linear[2] = linear<Int8>;
  t.rms_norm = rms_norm;
  t.silu_mul = silu_mul;
  t.attend = attend;
  t.rotary = rotary;
  t.argmax = argmax;
  t.contenders = contenders;
  return t;
}

}  // namespace
