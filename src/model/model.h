/* model: what a GGUF file says about a qwen4exp model. Shapes, hyperparameters, and where each
 * tensor lies. Nothing is hard-wired to the released sizes.
 */
#ifndef RG_MODEL_H
#define RG_MODEL_H

#include "model/gguf.h"
#include "model/desc.h"
#include "model/identity.h"
#include "model/pack.h"

#endif
