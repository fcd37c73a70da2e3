"""DataCoordinator: which samples there are, who has them, and what became of each.

prompts ─▶ coordinator ─ lease ─▶ worker      ledger, books: every sample and token, once
▲                   │         groups: complete ones go to the trainer
└─ partial, ended ──┘         journal, resuming: the same after a crash
"""
