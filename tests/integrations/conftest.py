import sys
from pathlib import Path

# the small models of every family
sys.path.insert(0, str(Path(__file__).parents[1] / "conversion"))
