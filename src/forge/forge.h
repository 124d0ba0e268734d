/* forge: the model-making and diagnosing commands of the program, one function each. An options
 * struct goes in, results and a status come out; progress through a callback; nothing is printed.
 */
#ifndef RG_FORGE_H
#define RG_FORGE_H

#include "forge/doctor.h"
#include "forge/route_stats.h"
#include "forge/synth.h"

#endif
