#!/bin/bash
# Puts what a GPU measurement needs on another machine into one folder: programs, their shared
# libraries, the Vulkan loader and validation layer, small models. tools/gpu_bundle.sh DIR
# There: DIR/gpu_measure.sh OUT (bare Linux of the same processor family with a GPU driver).
set -eu
cd "$(dirname "$0")/.."
dir=${1:?folder}
mkdir -p "$dir/lib" "$dir/layers" "$dir/models"
cmake --preset release -DRG_TESTS=OFF >/dev/null
cmake --build --preset release -j "${JOBS:-2}" --target regolith gpu_bench gpu_profile
cp build/release/regolith build/release/bench/gpu_bench build/release/bench/gpu_profile "$dir/"
cp tools/gpu_measure.sh "$dir/"
cp models/regolith-demo-q4.gguf tests/data/tiny/a-mix.gguf tests/data/tiny/a-mix.ids \
    tests/data/tiny/c-f32.gguf tests/data/tiny/c-f32.ids "$dir/models/"
cp tests/data/demo/heldout.txt "$dir/models/"
# Everything but the C library itself, which must be the target's own.
layer=$(find /usr/lib -name 'libVkLayer_khronos_validation.so' 2>/dev/null | head -1)
for program in "$dir/regolith" "$dir/gpu_profile" $layer; do
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// {print $3}'
done | sort -u | grep -v -E '/(libc|libm|libpthread|libdl)\.so' | while read -r lib; do
    cp -L "$lib" "$dir/lib/"
done
loader=$(ldconfig -p | awk '/libvulkan\.so\.1 / {print $NF; exit}')
[ -z "$loader" ] || cp -L "$loader" "$dir/lib/libvulkan.so.1"
# NVIDIA's driver for Vulkan is the one for X: without these it loads and finds no device.
for name in libGLX.so.0 libGLdispatch.so.0 libGL.so.1 libEGL.so.1 libX11.so.6 libXext.so.6 \
    libxcb.so.1 libXau.so.6 libXdmcp.so.6 libbsd.so.0 libmd.so.0; do
    lib=$(ldconfig -p | awk -v name="$name" '$1 == name {print $NF; exit}')
    if [ -n "$lib" ]; then cp -L "$lib" "$dir/lib/$name"; else echo "no $name here" >&2; fi
done
if [ -n "$layer" ]; then
    cp -L "$layer" "$dir/layers/"
    sed 's|"library_path": *"[^"]*"|"library_path": "./libVkLayer_khronos_validation.so"|' \
        /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json \
        >"$dir/layers/VkLayer_khronos_validation.json"
fi
du -sh "$dir"
