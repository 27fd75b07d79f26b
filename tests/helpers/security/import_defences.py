"""The defences, in the format of ``defences.py``, of imported files."""

from tests.helpers.security.defence import Defence

_KINDS, _ARCHIVES = "madlib_mop/imports/kinds.py", "madlib_mop/exports/archives.py"
_FILES, _TENSORS = "madlib_mop/imports/keras_files.py", "madlib_mop/exports/tensors.py"
_HDF5, _LOADING = "madlib_mop/imports/weights/hdf5.py", "madlib_mop/imports/loading.py"
_SIGNED, _SIGNATURES = "madlib_mop/driver/imports/signed.py", "madlib_mop/imports/signatures.py"
_OF_ARCHIVES = "tests/unit/exports/test_archives.py::"
_OF_FILES = "tests/unit/imports/test_keras_files.py::"
_OF_EXPORTS = "tests/unit/client/test_damaged_exports.py::"
_OF_TRAINER = "tests/unit/trainer/test_importing.py::"
_OF_SIGNED = "tests/unit/driver/test_import_signatures.py::"
_HOSTILE = f"{_OF_TRAINER}test_hostile_files_are_refused_before_a_number_is_read"
_SHARED = f"{_OF_EXPORTS}test_texts_of_weights_that_are_all_the_same_bytes_are_not_copied"

DEFENCES_OF_IMPORTS = (
    Defence(
        "a pickle is named, and not opened",
        _KINDS,
        "    if start.startswith(_PICKLES):\n",
        "    if False:\n",
        ("tests/unit/imports/test_kinds.py::test_a_pickle_is_named_and_not_opened",),
    ),
    Defence(
        "an archive has the members of a Keras file only",
        _ARCHIVES,
        "        if self._others is None and name not in self._most_bytes:\n",
        "        if False:\n",
        (_OF_ARCHIVES + "test_other_names_are_refused",),
    ),
    Defence(
        "no member of an archive has a path that leaves it",
        _ARCHIVES,
        'if not {"", ".", ".."}.isdisjoint(parts) or "\\\\" in name or ":" in name or not name.isprintable():',
        "if False:",
        (_OF_ARCHIVES + "test_other_names_are_refused",
         "tests/unit/exports/test_directory.py::test_no_file_leaves_the_directory"),
    ),
    Defence(
        "no member of an archive is a link",
        _ARCHIVES,
        "        if stat.S_ISLNK(mode):\n",
        "        if False:\n",
        (_OF_ARCHIVES + "test_members_that_keras_does_not_write_are_refused",),
    ),
    Defence(
        "a member that has more bytes than it says is not inflated further",
        _ARCHIVES,
        "            if len(out) > member.n_bytes:\n",
        "            if False:\n",
        (_OF_ARCHIVES + "test_headers_that_lie_are_one_clear_error",),
    ),
    Defence(
        "a member that says that it expands very much is not inflated",
        _ARCHIVES,
        "        if size > RATIO_FLOOR_BYTES and size > MAX_RATIO * stored:\n",
        "        if False:\n",
        (_OF_ARCHIVES + "test_ten_gigabytes_of_zeros_are_not_inflated",),
    ),
    Defence(
        "a member has a largest size",
        _ARCHIVES,
        "        if size > most:\n",
        "        if False:\n",
        (_OF_ARCHIVES + "test_members_that_keras_does_not_write_are_refused",),
    ),
    Defence(
        "the bytes of an archive belong to one member",
        _ARCHIVES,
        "            if member.start < previous:\n",
        "            if False:\n",
        (_OF_ARCHIVES + "test_members_that_overlap_are_refused",),
    ),
    Defence(
        "a name stands for one member",
        _ARCHIVES,
        "        if len({member.name for member in members}) != len(members):\n",
        "        if False:\n",
        (_OF_ARCHIVES + "test_an_archive_that_contradicts_itself_is_one_clear_error",),
    ),
    Defence(
        "the number of members is limited before their names are read",
        _ARCHIVES,
        "        if count > MAX_MEMBERS:\n",
        "        if False:\n",
        (_OF_ARCHIVES + "test_many_members_are_refused_before_their_names_are_read",),
    ),
    Defence(
        "the architecture of an imported file is checked",
        _FILES,
        "        return check_architecture(config)\n",
        "        return json.loads(config)\n",
        (_OF_FILES + "test_dangerous_architectures_are_refused_and_nothing_runs",),
    ),
    Defence(
        "the weights of a Keras file are HDF5",
        _FILES,
        "    if not is_hdf5:\n",
        "    if False:\n",
        (_OF_FILES + "test_what_is_no_keras_file_is_one_clear_error",),
    ),
    Defence(
        "tensors of a safetensors file do not overlap",
        _TENSORS,
        "    if any(end != begin for (_, end), (begin, _) in pairwise(places)):\n",
        "    if False:\n",
        ("tests/unit/exports/test_tensors.py::test_a_damaged_header_is_one_clear_error",),
    ),
    Defence(
        "an HDF5 file has no links to other places and files",
        _HDF5,
        "            if not isinstance(link, h5py.HardLink):\n",
        "            if False:\n",
        (f"{_HOSTILE}[soft link]", f"{_HOSTILE}[external link]"),
    ),
    Defence(
        "an array is not put together from other files",
        _HDF5,
        "    if form.get_layout() not in _LAYOUTS:\n",
        "    if False:\n",
        (f"{_HOSTILE}[virtual dataset]",),
    ),
    Defence(
        "an array is not in another file",
        _HDF5,
        "    if form.get_external_count():\n",
        "    if False:\n",
        (f"{_HOSTILE}[external storage]",),
    ),
    Defence(
        "an array has no filters",
        _HDF5,
        "    if form.get_nfilters():\n",
        "    if False:\n",
        (f"{_HOSTILE}[gzip]",),
    ),
    Defence(
        "an array consists of plain numbers",
        _HDF5,
        "    if not is_number and not _is_bfloat16(dataset, path):\n",
        "    if False:\n",
        (f"{_HOSTILE}[objects]", f"{_HOSTILE}[compound]"),
    ),
    Defence(
        "an array has the bytes that it says",
        _HDF5,
        "    if n_stored < n_bytes:\n",
        "    if False:\n",
        (f"{_HOSTILE}[gigabytes that are not there]",),
    ),
    Defence(
        "the type of an array in an HDF5 file is one text",
        _HDF5,
        " and (is_list or not identity.shape)",
        "",
        (f"{_SHARED}[type of an array]",),
    ),
    Defence(
        "a name in an HDF5 file has a limited length",
        _HDF5,
        "    if not identity.shape and len(texts[0]) > _MAX_NAME:\n",
        "    if False:\n",
        (f"{_SHARED}[name of each layer]",),
    ),
    Defence(
        "names of layers in an HDF5 file are not read at the client",
        _LOADING,
        "        KerasWeights(weights).load(",
        "        source_of(weights).load(",
        (_OF_EXPORTS + "test_names_of_layers_are_not_read_at_the_client",),
    ),
    Defence(
        "a number of a signature is not written out with more digits than PostgreSQL has",
        "madlib_mop/client/frames/classes.py",
        "        if number.is_finite() and number.adjusted() > _MOST_DIGITS:\n",
        "        if False:\n",
        (_OF_EXPORTS + "test_a_class_of_very_many_digits_is_not_written_out",),
    ),
    Defence(
        "a group of an HDF5 file has one place",
        _HDF5,
        "        if identity in self._seen:\n",
        "        if False:\n",
        (f"{_HOSTILE}[circle]",),
    ),
    Defence(
        "an imported network is measured before there is memory for it",
        _LOADING,
        "    if n_bytes > MAX_BYTES:\n",
        "    if False:\n",
        (_OF_TRAINER + "test_weights_that_no_value_holds_are_refused_without_memory_for_them",),
    ),
    Defence(
        "an architecture that its file has not the weights of gets no memory",
        _LOADING,
        "    if n_stored is not None and n_bytes > max(_RATIO_FLOOR_BYTES, _MAX_RATIO * n_stored):\n",
        "    if False:\n",
        (_OF_EXPORTS + "test_one_changed_number_of_an_architecture_takes_no_memory",),
    ),
    Defence(
        "a document with very many lists and objects is not parsed",
        "plpython/mop_backend/bounded_json.py",
        "    if n_containers > MAX_CONTAINERS:\n",
        "    if False:\n",
        ("tests/unit/models/test_architecture.py::test_very_many_empty_objects_are_refused_before_they_are_read",),
    ),
    Defence(
        "a text beside an exported model has a largest size",
        "madlib_mop/client/exported/model.py",
        "        if n_bytes > most_bytes:\n",
        "        if False:\n",
        (_OF_EXPORTS + "test_texts_beside_a_model_have_a_largest_size",),
    ),
    Defence(
        "a number of a Protobuf message has an end",
        "madlib_mop/exports/formats.py",
        "        if shift > _MAX_SHIFT:\n",
        "        if False:\n",
        (_OF_EXPORTS + "test_a_number_of_many_bytes_in_an_onnx_file_is_one_clear_error",),
    ),
    Defence(
        "the fields of a signature have the types that they should have",
        _SIGNATURES,
        "        signature = build(Signature, fields, SIGNATURE)\n",
        "        signature = Signature(**fields)\n",
        (_OF_SIGNED + "test_a_damaged_signature_is_one_clear_error",),
    ),
    Defence(
        "a signature belongs to the model that it came with",
        _SIGNED,
        "    check_signature(signature, arch, hashlib.sha256(file.weights).hexdigest())\n",
        "",
        (_OF_SIGNED + "test_a_signature_is_checked_before_it_is_used",),
    ),
    Defence(
        "a preprocessor is the one that the signature names",
        _SIGNATURES,
        "    if (None if found is None else found.digest) != signature.preprocessor_digest:\n",
        "    if False:\n",
        (_OF_SIGNED + "test_a_preprocessor_must_be_the_one_that_the_signature_names",),
    ),
)
