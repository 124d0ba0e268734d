#!/bin/bash
# Measures the GPU backend on this machine: gpu_measure.sh OUT [LAYERS] [PART...]
# Parts: check ops profile resident streamed peer (default: all but peer). Results go to OUT/*.txt.
# Run from a folder made by tools/gpu_bundle.sh.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?folder for the results}
layers=${2:-12}
shift $(($# > 2 ? 2 : $#))
parts=${*:-check ops profile resident streamed}
mkdir -p "$out"
work=${RG_WORK:-/tmp/rg_gpu}
mkdir -p "$work"
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export VK_LAYER_PATH=$here/layers
# Containers often have the driver's libraries and not the file that names them to the loader.
if ! ls /usr/share/vulkan/icd.d/*nvidia* /etc/vulkan/icd.d/*nvidia* >/dev/null 2>&1 &&
    [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ]; then
    icd=/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json
    if [ ! -s $icd ]; then
        icd=$work/nvidia_icd.json
        cat >"$icd" <<EOF
{"file_format_version": "1.0.0",
 "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.0"}}
EOF
    fi
    export VK_ICD_FILENAMES=$icd VK_DRIVER_FILES=$icd
fi
rg=$here/regolith
run() { # run SECONDS FILE command...
    local limit=$1 file=$out/$2
    shift 2
    echo "\$ ${*//$here\//}" | tee -a "$file"
    timeout "$limit" "$@" >>"$file" 2>&1
    local rc=$?
    [ $rc -eq 0 ] || echo "exit $rc" | tee -a "$file"
    tail -n 4 "$file" | cut -c1-300
}
model=$work/synth-$layers.gguf
need_model() {
    [ -s "$model" ] && return
    run 400 synth.txt "$rg" synth "$model" --preset release --set layers="$layers" --set mtp=0 \
        --set vocab=65536 --set ngram_base=20000 --set ctx=8192 --overwrite
    ls -l "$model"
}
has() { case " $parts " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

run 60 device.txt "$rg" doctor --quick
grep -q 'Vulkan' "$out/device.txt" || VK_LOADER_DEBUG=error,warn,driver run 20 loader.txt \
    "$here/gpu_bench" --mib 16 --reps 1 f32
if has check; then # same answers, validation silent, same bits however the work is cut
    for m in a-mix c-f32; do
        run 100 check.txt "$rg" logits -m "$here/models/$m.gguf" --ids "$here/models/$m.ids" \
            --backend vulkan --gpu-check -v --hash
        run 100 check.txt "$rg" logits -m "$here/models/$m.gguf" --ids "$here/models/$m.ids" \
            --backend vulkan --gpu-check --chunk 7 --arena-experts 9 --hash
    done
    demo=$here/models/regolith-demo-q4.gguf
    for b in cpu vulkan; do
        run 60 check.txt "$rg" run -m "$demo" --raw -p "The moon" -n 48 --temp 0 --backend $b
    done
    head -c 1500 "$here/models/heldout.txt" >"$work/heldout.txt"
    run 60 check.txt "$rg" kld -m "$demo" -f "$work/heldout.txt" \
        --kernels ref --save "$work/ref.kld"
    run 60 check.txt "$rg" kld -m "$demo" -f "$work/heldout.txt" \
        --backend vulkan --ref "$work/ref.kld"
fi
if has ops; then
    run 300 ops.txt "$here/gpu_bench" --mib 1024 --reps 5 q8_0 q6_K q4_K iq2_xs iq3_xxs iq4_nl f32
    run 300 sweep.txt "$here/gpu_bench" --mib 512 --reps 3 --sweep q8_0 q6_K iq2_xs \
        iq3_xxs iq4_nl
fi
if has profile; then
    need_model
    run 200 profile.txt "$here/gpu_profile" "$model" 1024 32
fi
if has resident; then
    need_model
    run 200 resident.txt "$rg" bench -m "$model" --backend vulkan -p 1024 -n 64 --chunk 1024 \
        --reps 3
    run 200 resident.txt "$rg" bench -m "$model" --backend cpu -p 1024 -n 32 --chunk 1024 --reps 1
fi
if has streamed; then # a fifth of the experts in the arena
    need_model
    slots=$((layers * 512 / 5))
    run 200 streamed.txt "$rg" bench -m "$model" --backend vulkan -p 1024 -n 64 --chunk 1024 \
        --reps 2 --arena-experts $slots
    run 200 streamed.txt "$rg" bench -m "$model" --backend vulkan -p 64 -n 64 --reps 3 \
        --arena-experts $slots --ab split=on,off
fi
if has peer; then # llama-bench on the PATH, on the same file
    need_model
    run 200 peer.txt llama-bench -m "$model" -p 1024 -n 64 -ngl 99 -r 3
fi
