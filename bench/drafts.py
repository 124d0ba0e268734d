#!/usr/bin/env python3
"""Decode speed with drafts against without, in interleaved runs of the binary: A B A B.

usage: drafts.py REGOLITH MODEL [--case CASE]... [--draft MODE] [--draft-max N] [--rounds R]
                 [-n N] [engine flags, such as --arena-experts 100]

Cases: `prose` draws from a prose prompt (temperature 0.8, another seed each round), `greedy` goes
on with it greedily, `echo` goes on greedily behind an agent's transcript whose calls and tool
output came several times, `list` behind a repeated listing. Prints, for each case, the median ratio
of the two decode speeds and its spread, and checks that both arms gave the same tokens.
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROSE = ('Sir Walter had at first thought more of London; but Mr. Shepherd felt that he could not '
         'be trusted in London, and had been skilful enough to dissuade him from it, and make Bath '
         'preferred. It was a much safer place for a gentleman in his predicament: he might there '
         'be important at comparatively little expense.')
NAMES = ('anne walter russell wentworth elliot musgrove harville benwick croft clay smith '
         'louisa').split()
LISTING = ''.join(f'{n:04d} {name} {(n * 37 + 17) % 97}\n' for n, name in enumerate(NAMES))

TOOLS = '''<|im_start|>system
# Tools

You may call these functions:

<tools>
{"type": "function", "function": {"name": "get_weather", "description": "Report the weather in a \
town.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": \
["city"]}}}
</tools>

To call one, reply in this form:

<tool_call>
<function=NAME>
<parameter=KEY>
value
</parameter>
</function>
</tool_call><|im_end|>
'''
ROUND = '''<|im_start|>user
I am going to Ankara. What weather shall I have?<|im_end|>
<|im_start|>assistant
<think>

</think>

<tool_call>
<function=get_weather>
<parameter=city>
Ankara
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
{"city": "Ankara", "sky": "sunshine", "celsius": 23}
</tool_response><|im_end|>
<|im_start|>assistant
<think>

</think>

In Ankara it is 23 degrees, with sunshine.<|im_end|>
'''
TEXTS = {'echo': TOOLS + ROUND * 4, 'list': (LISTING + '\n') * 6}


def prompts(case, folder):
    path = folder / 'prompt.txt'
    path.write_text(TEXTS.get(case, PROSE), encoding='utf-8')
    return path


def run(args, path, seed, case, *flags):
    temp = ('--temp', '0') if case != 'prose' else ('--temp', '0.8', '--seed', str(seed))
    done = subprocess.run([args.engine, 'run', '-m', args.model, '-f', str(path), '--raw', '-n',
                           str(args.n), '--ignore-eos', '--json', *temp, *args.flags, *flags],
                          capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode('utf-8', 'replace').strip())
    return json.loads(done.stdout)


def measure(args, case, folder):
    path = prompts(case, folder)
    drafts = ('--draft', args.draft, '--draft-max', str(args.draft_max))
    ratios, plain, drafted, offered, accepted = [], [], [], 0, 0
    for seed in range(args.rounds):
        a = run(args, path, seed, case)
        b = run(args, path, seed, case, *drafts)
        if a['ids'] != b['ids']:
            sys.exit(f'{case}: the tokens differ with drafts (seed {seed})')
        plain.append(a['decode_tok_s'])
        drafted.append(b['decode_tok_s'])
        ratios.append(b['decode_tok_s'] / a['decode_tok_s'])
        offered += b['draft']['offered']
        accepted += b['draft']['accepted']
    print(f'{case}\t{args.draft} up to {args.draft_max}\tx {statistics.median(ratios):.3f} '
          f'({min(ratios):.3f}-{max(ratios):.3f})\t{statistics.median(plain):.1f} -> '
          f'{statistics.median(drafted):.1f} tok/s\t{accepted} of {offered} drafts, '
          f'{args.rounds} rounds of {args.n} tokens', flush=True)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument('engine')
    p.add_argument('model')
    p.add_argument('--case', action='append')
    p.add_argument('--draft', default='auto')
    p.add_argument('--draft-max', type=int, default=7)
    p.add_argument('--rounds', type=int, default=7)
    p.add_argument('-n', type=int, default=300)
    args, args.flags = p.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        for case in args.case or ['prose', 'greedy', 'echo']:
            measure(args, case, Path(folder))


if __name__ == '__main__':
    main()
