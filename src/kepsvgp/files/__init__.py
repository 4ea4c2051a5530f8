"""Files that are either whole or absent: every artefact is written through here.

What we write also tells when it was changed, cut, damaged or exchanged: a folder lists the
checksums of its files in `manifest.json`, and a JSON file that stands alone carries its own.
"""

from kepsvgp.files.atomic import A_DAY as A_DAY
from kepsvgp.files.atomic import PART as PART
from kepsvgp.files.atomic import locked as locked
from kepsvgp.files.atomic import remove_leftovers as remove_leftovers
from kepsvgp.files.atomic import replacing as replacing
from kepsvgp.files.atomic import write_atomic as write_atomic
from kepsvgp.files.checked import MANIFEST as MANIFEST
from kepsvgp.files.checked import CheckedFolder as CheckedFolder
from kepsvgp.files.paths import absolute as absolute
from kepsvgp.files.paths import check_name as check_name
from kepsvgp.files.paths import expanded as expanded
from kepsvgp.files.sealed import FORMAT as FORMAT
from kepsvgp.files.sealed import damaged as damaged
from kepsvgp.files.sealed import file_checksum as file_checksum
from kepsvgp.files.sealed import read_json as read_json
from kepsvgp.files.sealed import read_text as read_text
from kepsvgp.files.sealed import write_json as write_json
