#include <signal.h>
#include <string.h>

#include "cli/cli.h"

static const cli_command commands[] = {
    {"run", "-m MODEL (-p TEXT | -f FILE | --ids FILE) [options]",
     "Generates one reply. Generated text alone goes to standard output.", "mexifIcgsjMD", 0,
     cli_run},
    {"chat", "-m MODEL [options]",
     "A conversation in the terminal: history, several lines, Ctrl-C stops a reply.", "mexcgsMD", 0,
     cli_chat},
    {"logits", "-m MODEL --ids FILE [--out FILE] [--top K] [--hash] [options]",
     "Logits of every position of a given token sequence.", "mexIlM", 0, cli_logits},
    {"tokenize", "-m MODEL (TEXT | -f FILE) [--decode] [--special]",
     "Text to token ids on one line, or back.", "mft", 1, cli_tokenize},
    {"inspect", "MODEL", "Metadata, tensors, types, sizes and expert classes of a model file.", "m",
     1, cli_inspect},
    {"pack", "MODEL [OUT]",
     "Copies the experts into a file that streams with one checked read an expert.", "m", 2,
     cli_pack},
    {"plan", "-m MODEL [--ram SIZE] [--ctx N]",
     "Memory plan: what stays resident, what streams, and whether it fits.", "mexD", 0, cli_plan},
    {"synth", "OUT.gguf [--preset NAME] [--set KEY=VALUE] [--type REGEX=TYPE]",
     "Writes a random model of any shape, with routing like a trained one's.", "y", 1, cli_synth},
    {"doctor", "[-m MODEL] [--quick]",
     "Measures drive and memory, checks limits and the model file, and gives advice.", "mdj", 0,
     cli_doctor},
    {"bench",
     "-m MODEL [-p N] [-n N] [--reps R] [--ab FLAG=A,B]... [--kernels] [--sweep OP] [-f TEXT] "
     "[--json] [options]",
     "Prefill and decode figures, cold and warm, with where the time went.", "mexfjbMD", 0,
     cli_bench},
    {"kld", "-m MODEL... -f TEXT (--ref FILE | --save FILE) [--ctx N] [--top-k N] [options]",
     "Divergence of a model's predictions from saved ones, over windows of N tokens.", "mexfjk", 0,
     cli_kld},
    {"serve", "-m MODEL [--port N] [--parallel N] [options]",
     "Serves the model over HTTP: OpenAI and Anthropic dialects, metrics, a web page.", "mexScsMD",
     0, cli_serve},
    {"convert", "FOLDER OUT.gguf [--type TYPE] [--tensor-type REGEX=TYPE]... [--no-mtp]",
     "Writes a Hugging Face checkpoint (safetensors) as GGUF; a killed run is continued.", "Cw", 2,
     cli_convert},
    {"imatrix", "-m MODEL -f TEXT [--ctx N] OUT.gguf",
     "Sums of squares of what every matrix is multiplied with, for quantize --imatrix.", "mexfO", 1,
     cli_imatrix},
    {"pull", "hf:USER/REPO[:QUANT] | URL [--dir FOLDER] [--sha256 HEX]",
     "Downloads a model into the local store, resumed and verified; -m hf:... then finds it.", "P",
     1, cli_pull},
    {"quantize", "IN.gguf OUT.gguf --type TYPE [--imatrix FILE] [--tensor-type REGEX=TYPE]...",
     "Writes a model with other types: a named mix, rules, or the best ones for a size.", "qwv", 2,
     cli_quantize},
    {"ppl", "-m MODEL -f TEXT [--ctx N]",
     "Perplexity over non-overlapping windows of N tokens (default 512).", "mexfj", 0, cli_ppl},
    {"trace record", "-m MODEL (-p TEXT | -f FILE | --ids FILE) [options] TRACE",
     "Generates one reply and records what it asked of the experts.", "mexifIcgsjMD", 1,
     cli_trace_record},
    {"trace replay", "TRACE [--arena-experts N,...] [--policy P,...] [--lookahead N,...]",
     "Hits and speeds of a recorded run with other arenas, policies and read-ahead.", "r", 1,
     cli_trace_replay},
    {"trace profile", "TRACE... -o OUT",
     "Uses of each expert over recorded runs: MODEL.rgprofile makes the start warm.", "o", 64,
     cli_trace_profile},
    {"manual", "COMMAND", "Prints the manual page of a command, for man -l.", "", 1, cli_manual},
    {"completion", "bash|zsh|fish", "Prints completions for a shell.", "", 1, cli_completion},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

const cli_command *cli_command_at(size_t i) {
    return i < N_COMMANDS ? &commands[i] : NULL;
}

static void print_overview(FILE *to) {
    fprintf(to, "regolith %s: runs Mixture-of-Experts language models larger than memory\n\n",
            RG_VERSION);
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(to, "  regolith %-13s %s\n", commands[i].name, commands[i].usage);
    }
    fprintf(to, "\nregolith COMMAND --help lists the options of a command.\n");
}

static int run_command(const cli_command *c, int argc, char **argv) {
    cli_options opt;
    bool help = false;
    cli_name_command(c->name);
    const int rc = cli_parse(c, argc, argv, &opt, &help);
    if (rc != CLI_OK) return rc;
    if (help) {
        cli_print_help(c);
        return cli_finish_output();
    }
    const bool by_word = (c->run == cli_inspect || c->run == cli_pack) && opt.n_args;
    const bool optional = c->run == cli_doctor;
    if (strchr(c->flags, 'm') && !opt.model && !by_word && !optional) {
        return cli_usage(c->name, "-m MODEL is missing");
    }
    const int found = cli_resolve_models(&opt);
    return found == CLI_OK ? c->run(&opt) : found;
}

/* How many of the words name the command; 0: none. */
static int match(const cli_command *c, int argc, char **argv) {
    const char *space = strchr(c->name, ' ');
    if (!space) return strcmp(argv[1], c->name) == 0 ? 1 : 0;
    const size_t n = (size_t)(space - c->name);
    if (strlen(argv[1]) != n || strncmp(argv[1], c->name, n) != 0) return 0;
    return argc > 2 && strcmp(argv[2], space + 1) == 0 ? 2 : 0;
}

int main(int argc, char **argv) {
    /* A reader that leaves must be an error of the write, not the end of the process. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* likewise a limit on the size of files */
    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_overview(stdout);
        return cli_finish_output();
    }
    if (strcmp(word, "--version") == 0) {
        printf("regolith %s\n", RG_VERSION);
        return cli_finish_output();
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        const int n = match(&commands[i], argc, argv);
        if (n) return run_command(&commands[i], argc - n, argv + n);
    }
    return cli_usage(word, "unknown command (see regolith --help)");
}
